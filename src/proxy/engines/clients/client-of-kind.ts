import { createOpenaiClient } from './openai/client.ts'
import { createSglangClient } from './sglang/client.ts'
import { createVllmClient } from './vllm/client.ts'

/** The factory of a client, by the kind of server. */
export const CLIENT_OF_KIND = {
  vllm: createVllmClient,
  sglang: createSglangClient,
  openai: createOpenaiClient,
} as const
