/** A counting worker as a process: `node worker-process.ts <proxy-url> <worker-id> <counting-as-json>`. */
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { CountingBackend } from './counting-backend.ts'
import { silentLogger } from './silent-logger.ts'

const [proxyUrl, workerId, counting] = process.argv.slice(2) as [string, string, string]
const worker = new InferenceWorkerClient({
  proxyUrls: [proxyUrl],
  workerId,
  backend: new CountingBackend(JSON.parse(counting)),
  maxConcurrency: 64,
  logger: silentLogger,
})
worker.start()
