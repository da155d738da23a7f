"""The kinds of stages: their variables, validity and cost estimates."""
