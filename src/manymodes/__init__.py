"""manymodes: continual learning without keeping old data."""
