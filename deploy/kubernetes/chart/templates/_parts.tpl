{{- define "downbeat.labels" -}}
app.kubernetes.io/name: downbeat
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "downbeat.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ required "image.tag or image.digest must be set" .Values.image.tag }}{{ end }}
{{- end -}}

{{/* Every scheduler by its own name, for all parts. */}}
{{- define "downbeat.schedulers" -}}
{{- $all := list -}}
{{- range until (int .Values.scheduler.replicas) -}}
{{- $all = append $all (printf "%s-scheduler-%d.%s-scheduler:7070" $.Release.Name . $.Release.Name) -}}
{{- end -}}
{{ join "," $all }}
{{- end -}}

{{/* One file for all parts; values.config wins, but cannot take away what the other templates rely on. */}}
{{- define "downbeat.config" -}}
{{- if hasKey .Values.config "lanes" }}{{ fail "config: lanes belongs to the kinds in backends, where autoscaling counts it" }}{{ end -}}
{{- $cluster := dict "tls_name" .Values.tlsName -}}
{{- if gt (int .Values.scheduler.replicas) 1 -}}
{{- $_ := set $cluster "election" (printf "kubernetes://%s/%s" .Release.Namespace .Release.Name) -}}
{{- end -}}
{{- $needed := dict "listen" "0.0.0.0:7070" "scheduler" (include "downbeat.schedulers" .) "http" "0.0.0.0:8000" "grpc" "0.0.0.0:8001" "data" "0.0.0.0:7071" "models" .Values.models.path "token_file" "/etc/downbeat/secret/token" "tls" "/etc/downbeat/tls" "cluster" $cluster -}}
{{ mergeOverwrite (deepCopy .Values.config) $needed | toYaml }}
{{- end -}}

{{- define "downbeat.podSecurity" -}}
{runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "downbeat.containerSecurity" -}}
{runAsNonRoot: true, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
{{- end -}}

{{- define "downbeat.mounts" -}}
- {name: config, mountPath: /etc/downbeat/config}
- {name: secret, mountPath: /etc/downbeat/secret}
- {name: tls, mountPath: /etc/downbeat/tls}
{{- end -}}

{{- define "downbeat.volumes" -}}
- {name: config, configMap: {name: {{ .Release.Name }}}}
- {name: secret, secret: {secretName: {{ .Values.tokenSecret }}}}
- {name: tls, secret: {secretName: {{ .Values.tlsSecret }}}}
{{- end -}}

{{/* What a pod of any part begins with; takes the root and the part's values. */}}
{{- define "downbeat.pod" -}}
enableServiceLinks: false
securityContext: {{ include "downbeat.podSecurity" .root }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}

{{- define "downbeat.live" -}}
{httpGet: {path: /v2/health/live, port: metrics, scheme: HTTPS}, periodSeconds: 5, failureThreshold: 3}
{{- end -}}

{{/* Pods of a new configuration replace those of the old one. */}}
{{- define "downbeat.stamp" -}}
downbeat.dev/config: {{ include "downbeat.config" . | sha256sum | trunc 16 | quote }}
{{- end -}}

{{/* How many GPUs the scheduler counts in a pod of a kind of backends: each lane is one. */}}
{{- define "downbeat.gpusPerPod" -}}
{{ mul (int .gpus | default (int .emulate) | default (int .executors) | default 1) (int .lanes | default 1) }}
{{- end -}}

{{/* A backend refuses these when it starts; the chart refuses them before anything is installed. */}}
{{- define "downbeat.checkLanes" -}}
{{- $onProcessor := not (or .gpus .emulate) -}}
{{- if and (gt (int .threads) 1) (not $onProcessor) -}}
{{ fail (printf "backends: kind %s: threads belong to executors on the processor, not to gpus or emulate" .kind) }}
{{- end -}}
{{- if and $onProcessor (ne 0 (mod (int .threads | default 1) (int .lanes | default 1))) -}}
{{ fail (printf "backends: kind %s: threads must be a multiple of lanes" .kind) }}
{{- end -}}
{{- end -}}
