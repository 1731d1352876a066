-- What the calls cost together is read without their answers, which may be large.
CREATE INDEX call_totals ON calls (prompt_tokens, completion_tokens, cost);
