{{/* Names, labels and computed values of the chart. */}}

{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.fullname" -}}
{{- $name := include "weir.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Seconds from SIGTERM to SIGKILL: the longest stop, and a reserve to close connections. */}}
{{- define "weir.terminationGraceSeconds" -}}
{{- add .Values.drain.delaySeconds .Values.drain.deadlineSeconds 5 -}}
{{- end -}}

{{/* The largest number of replicas. */}}
{{- define "weir.replicasMax" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicaCount .Values.autoscaling.enabled -}}
{{- end -}}

{{/* The volume source of gateway.toml. */}}
{{- define "weir.configVolume" -}}
{{- $config := .Values.config -}}
{{- if $config.existingSecret -}}
secret:
  secretName: {{ $config.existingSecret }}
  defaultMode: 0440
{{- else if $config.existingConfigMap -}}
configMap:
  name: {{ $config.existingConfigMap }}
{{- else if eq $config.kind "Secret" -}}
secret:
  secretName: {{ include "weir.fullname" . }}
  defaultMode: 0440
{{- else -}}
configMap:
  name: {{ include "weir.fullname" . }}
{{- end -}}
{{- end -}}

{{/* True if the configuration is an existing object. */}}
{{- define "weir.hasExistingConfig" -}}
{{- if or .Values.config.existingSecret .Values.config.existingConfigMap -}}true{{- end -}}
{{- end -}}
