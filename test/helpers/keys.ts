/** Keys for a proxy that requires them, two of each kind, as during a rotation. */
export const KEYS = {
  adminKeys: ['new-admin-key-for-tests', 'old-admin-key-for-tests'],
  workerKeys: ['new-worker-key-for-tests', 'old-worker-key-for-tests'],
  viewKeys: ['new-view-key-for-tests', 'old-view-key-for-tests'],
  metricsKeys: ['new-metrics-key-for-tests', 'old-metrics-key-for-tests'],
  agentKeySecrets: ['new-agent-secret-for-tests', 'old-agent-secret-for-tests'],
}
