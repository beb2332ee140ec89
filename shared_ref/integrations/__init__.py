"""What serving stacks of several frameworks have in common."""
