"""What a node and a launch are like before training. Nothing here loads torch but `meeting`."""
