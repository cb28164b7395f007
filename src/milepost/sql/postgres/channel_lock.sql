-- Places are given one after the other, by whoever holds the row: nobody sees a later one first.
SELECT places FROM channel WHERE name = :name
   FOR UPDATE
