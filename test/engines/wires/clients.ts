import type { createSglangClient as Create } from '../../../src/proxy/engines/clients/sglang/client.ts'
import { createSglangClient } from '../../../src/proxy/engines/clients/sglang/client.ts'
import { createVllmClient } from '../../../src/proxy/engines/clients/vllm/client.ts'

/** Clients by the first word of a recorded engine's name. */
export const CLIENTS: Record<string, typeof Create> = { vllm: createVllmClient, sglang: createSglangClient }
