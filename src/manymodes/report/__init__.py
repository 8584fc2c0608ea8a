"""Tables, figures and a page from run directories; sees files only, never a live learner."""
