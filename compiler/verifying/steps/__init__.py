"""Take models of every format apart, to compare one operator after the other."""
