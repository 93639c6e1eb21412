"""The simulated accelerator: no model, but steps that take the time a fitted profile predicts, and answers of words."""
