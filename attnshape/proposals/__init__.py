"""Works out what a target takes, where the user gave no constructor arguments or inputs: read, propose, try."""
