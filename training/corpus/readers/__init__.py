"""How each format of source is read: records, and what is wrong with those that cannot be."""
