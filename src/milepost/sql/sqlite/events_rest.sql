UPDATE feed_switch SET until = 0 WHERE until > 0 AND until < {now} RETURNING id
