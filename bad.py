def forever(submit):
    while True:
        pass
