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

{{- /* The URL of a database, with its password in a file of a folder. */ -}}
{{- define "bendybus.database" -}}
{{- $url := index . 0 -}}
{{- $url }}{{ if contains "?" $url }}&{{ else }}?{{ end }}password_file={{ index . 1 }}/password
{{- end -}}
