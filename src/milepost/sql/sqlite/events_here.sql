SELECT CAST(coalesce(max(place), 0) AS TEXT) FROM feed
