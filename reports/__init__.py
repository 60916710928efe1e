"""Tables, plots, pages and the claim ledger."""
