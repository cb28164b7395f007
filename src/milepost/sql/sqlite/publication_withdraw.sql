-- each: a run that is stopping or has ended takes back what is not published.
UPDATE publication SET withdrawn = true
 WHERE run_id = :run_id AND published < total AND NOT withdrawn
