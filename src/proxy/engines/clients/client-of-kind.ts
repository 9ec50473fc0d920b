import { createOpenaiClient } from './openai/client.ts'
import { createSglangClient } from './sglang/client.ts'
import { createVllmClient } from './vllm/client.ts'

/** The functions that create clients, by kind of server. */
export const CLIENT_OF_KIND = {
  vllm: createVllmClient,
  sglang: createSglangClient,
  openai: createOpenaiClient,
} as const
