-- One constant POST per request: wrk builds it once.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '@BODY@'
