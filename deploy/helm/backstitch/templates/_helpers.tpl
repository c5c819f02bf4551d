{{- define "backstitch.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "backstitch.labels" -}}
app.kubernetes.io/name: backstitch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: backstitch
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "backstitch.selector" -}}
app.kubernetes.io/name: backstitch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "backstitch.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "backstitch.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* A pod template. Parameters: root, component, args, resources, and further fields of the container. */}}
{{- define "backstitch.pod" -}}
metadata:
  labels:
    {{- include "backstitch.selector" . | nindent 4 }}
  annotations:
    checksum/config: {{ .root.Values.config | sha256sum }}
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "backstitch.serviceAccount" .root }}
  automountServiceAccountToken: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: { type: RuntimeDefault }
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: 60
  containers:
    - name: backstitch
      image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args:
        - --config
        - /etc/backstitch/backstitch.toml
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: BACKSTITCH__DATA_DIR
          value: /var/lib/backstitch
        - name: BACKSTITCH__TELEMETRY__METRICS_LISTEN
          value: 0.0.0.0:9464
        {{- with .root.Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .root.Values.existingSecret }}
      envFrom:
        - secretRef: { name: {{ . | quote }} }
      {{- end }}
      {{- with .container }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - { name: config, mountPath: /etc/backstitch, readOnly: true }
        - { name: data, mountPath: /var/lib/backstitch }
        - { name: tmp, mountPath: /tmp }
        {{- with .root.Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: { name: {{ include "backstitch.name" .root }} }
    # Contains spilled data of queries. All other data is on servers.
    - name: data
      emptyDir: { sizeLimit: {{ .root.Values.spill.sizeLimit | quote }} }
    - name: tmp
      emptyDir: { sizeLimit: 1Gi }
    {{- with .root.Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
