"""The bias suite: what a model associates with gender, ethnicity and religion."""
