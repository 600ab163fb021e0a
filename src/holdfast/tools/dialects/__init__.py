"""The vocabularies that models know, one module each; `tools` says what they share."""
