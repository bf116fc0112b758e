{{/* Checks values that depend on each other. The schema checks the others. */}}
{{- define "weir.check" -}}
{{- $config := .Values.config -}}
{{- $sources := list $config.text $config.existingSecret $config.existingConfigMap | compact -}}
{{- if ne (len $sources) 1 -}}
{{- fail "set one of config.text, config.existingSecret and config.existingConfigMap" -}}
{{- end -}}
{{- $written := list "server" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret -}}
{{- $written = append $written "redis" -}}
{{- end -}}
{{- if .Values.postgresql.url -}}
{{- $written = append $written "index" -}}
{{- end -}}
{{- range $written -}}
{{- if regexMatch (printf "(?m)^\\s*\\[\\s*%s\\s*\\]" .) $config.text -}}
{{- fail (printf "config.text has the table [%s], which the chart writes from its values" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.redis.url .Values.redis.existingSecret -}}
{{- fail "set redis.url or redis.existingSecret, not both" -}}
{{- end -}}
{{- if and .Values.postgresql.existingSecret (not .Values.postgresql.url) (not (include "weir.hasExistingConfig" .)) -}}
{{- fail "postgresql.existingSecret needs postgresql.url" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) -}}
{{- fail "tls.enabled needs tls.existingSecret" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}

{{/* The tables that a process reads only at its start. A change of them restarts the pods. */}}
{{- define "weir.startTables" -}}
{{- $address := .Values.listenAddress -}}
[server]
listen = "{{ $address }}:{{ .Values.ports.http }}"
{{- if .Values.tls.enabled }}
listen_tls = "{{ $address }}:{{ .Values.ports.https }}"
{{- end }}
admin = "127.0.0.1:{{ .Values.ports.admin }}"
health = "{{ $address }}:{{ .Values.ports.health }}"
{{- with .Values.server.threads }}
threads = {{ . }}
{{- end }}
{{- with .Values.server.memoryMax }}
memory_max = {{ . | quote }}
{{- end }}
drain_delay = "{{ .Values.drain.delaySeconds }}s"
drain_linger = "{{ .Values.drain.lingerSeconds }}s"
drain_deadline = "{{ .Values.drain.deadlineSeconds }}s"
termination_grace = "{{ include "weir.terminationGraceSeconds" . }}s"
reload_on_change = {{ .Values.config.reloadOnChange }}
{{- if .Values.postgresql.url }}

[index]
db = {{ .Values.postgresql.url | quote }}
{{- with .Values.postgresql.chain }}
chain = {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The whole gateway.toml. */}}
{{- define "weir.gatewayToml" -}}
{{ include "weir.startTables" . }}
{{- if .Values.tls.enabled }}

[[certificate]]
chain_file = "/run/secrets/weir-tls/tls.crt"
key_file = "/run/secrets/weir-tls/tls.key"
{{- end }}
{{- if or .Values.redis.url .Values.redis.existingSecret }}

[redis]
{{- if .Values.redis.existingSecret }}
url = "${file:/run/secrets/weir-redis/url}"
{{- else }}
url = {{ .Values.redis.url | quote }}
{{- end }}
{{- if .Values.redis.gateways }}
gateways = {{ .Values.redis.gateways }}
{{- else }}
gateways_assumed = {{ include "weir.replicasMax" . | int | add1 | min 1000 }}
{{- end }}
{{- end }}

{{ .Values.config.text | trim }}
{{- end -}}
