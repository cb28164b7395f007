-- What the old run took back goes on in the new one: its producers succeeded and do not run again.
UPDATE publication SET run_id = :new_id, withdrawn = false
 WHERE run_id = :old_id AND withdrawn AND published < total
