"""Taking the evaluation tasks' texts out of the training documents, as GPT-3 and MT-NLG did."""
