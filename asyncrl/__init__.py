OWNER = "asyncrl"
