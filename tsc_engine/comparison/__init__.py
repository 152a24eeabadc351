"""Two folders of results side by side: which rates differ beyond noise."""
