"""An index learns a new model from its labels, measured on groups that the model has not learnt."""
