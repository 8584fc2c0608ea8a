"""Other people's code on the other side of a comparison; never imported by the package."""
