"""Many models: which there are, a process for each, a row for each, and what tables say about the rows."""
