INSERT INTO migration (number, name, checksum) VALUES (:number, :name, :checksum)
