import { createOpenaiClient } from './openai/client.ts'
import { createSglangClient } from './sglang/client.ts'
import { createVllmClient } from './vllm/client.ts'

/** What makes a client of a server, by the server's kind. */
export const CLIENT_OF_KIND = {
  vllm: createVllmClient,
  sglang: createSglangClient,
  openai: createOpenaiClient,
} as const
