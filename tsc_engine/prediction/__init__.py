"""What theory says about a problem before anything is run: asked, answered, and shown."""
