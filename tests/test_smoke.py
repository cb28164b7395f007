def test_a_hand_moves_a_job(raw):
    job = "018f0000-0000-7000-8000-000000000001"
    raw.execute(
        f"INSERT INTO job (id, kind, state, move) VALUES ('{job}', 'k', 'QUEUED', 'create')"
    )
    raw.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
    assert raw.value("SELECT count(*) FROM journal") == 2
