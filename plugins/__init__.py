"""The estimators that come with the engine; a file dropped into this folder is one more."""
