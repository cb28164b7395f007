-- Jobs that follow on failures.

-- name: followup_list
SELECT kind, kind_version, template FROM followup

-- name: followup_declare
INSERT INTO followup (kind, kind_version, template) VALUES (:kind, :kind_version, :template)
ON CONFLICT (kind, kind_version) DO UPDATE SET template = excluded.template

-- name: followup_forget
DELETE FROM followup WHERE kind = :kind AND kind_version = :kind_version

-- name: followup_due
-- Of jobs that just ended, those that failed and whose kind has a follow-up.
-- postgres
SELECT job.id::text, job.tenant, job.trace, followup.template
  FROM job JOIN followup ON followup.kind = job.kind AND followup.kind_version = job.kind_version
 WHERE job.id = ANY (:id::uuid[]) AND job.state = 'FAILED'
 ORDER BY job.id
-- sqlite
SELECT job.id, job.tenant, job.trace, followup.template
  FROM json_each(:id) AS ended CROSS JOIN job CROSS JOIN followup
 WHERE job.id = ended.value AND followup.kind = job.kind
   AND followup.kind_version = job.kind_version AND job.state = 'FAILED'
 ORDER BY job.id
