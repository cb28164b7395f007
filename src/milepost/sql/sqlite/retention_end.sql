UPDATE retention SET active = 0
