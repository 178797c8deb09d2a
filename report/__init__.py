"""What people look at: metrics and pictures made from results."""
