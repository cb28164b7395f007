SELECT name, transport, paused, paused_at, paused_by FROM queue ORDER BY name
