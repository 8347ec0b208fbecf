"""The command line: reads arguments, prints results; everything else is done elsewhere."""
