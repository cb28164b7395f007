INSERT INTO pipeline_run (run_id, root_id, pipeline_id, mode, before_mark, start_mark, end_mark,
                          overlap, margin, number)
VALUES (:run_id, :root_id, :pipeline_id, :mode, :before_mark, :start_mark, :end_mark, :overlap,
        :margin, :number)
