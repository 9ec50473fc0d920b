/**
 * Finish reasons of engines that stopped the model before it ended by itself or reached its limit: vLLM's repetition
 * detection (`FinishReason` in `vllm/v1/engine/__init__.py`) and DeepSeek's API under load.
 */
const ENGINE_CUTS: ReadonlySet<string> = new Set(['repetition', 'insufficient_system_resource'])

/** Whether the engine cut the completion off for another reason than its length. */
export function isCutByEngine(finishReason: string | null): boolean {
  return finishReason !== null && ENGINE_CUTS.has(finishReason)
}

/** Whether the model was cut off in what it said. */
export function isCutOff(finishReason: string | null): boolean {
  return finishReason === 'length' || isCutByEngine(finishReason)
}
