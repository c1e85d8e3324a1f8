{{- define "bendybus.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "bendybus.selector" -}}
app.kubernetes.io/name: bendybus
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "bendybus.labels" -}}
{{ include "bendybus.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
