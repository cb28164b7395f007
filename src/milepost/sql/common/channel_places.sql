UPDATE channel SET places = :places WHERE name = :name
