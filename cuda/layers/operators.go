package layers

import (
	"downbeat.dev/cuda/kernels"
)

// operator describes how a node becomes launches. inputs is the required number of inputs.
type operator struct {
	inputs int
	lower  func(c *compiler, n *Node) error
}

// operators are the supported operators. It is filled in init because lowering a constant looks it up.
var operators map[string]*operator

func init() {
	operators = map[string]*operator{
		"Conv": {2, lowerConv}, "ConvTranspose": {2, lowerConvTranspose}, "Greater": {2, lowerGreater}, "Gemm": {2, lowerGemm}, "MatMul": {2, matMul}, "BatchNormalization": {5, batchNorm},
		"MaxPool": {1, lowerPool(kernels.PoolMax)}, "AveragePool": {1, lowerPool(kernels.PoolAverage)},
		"GlobalAveragePool": {1, globalPool(kernels.ReduceMean)}, "GlobalMaxPool": {1, globalPool(kernels.ReduceMax)},
		"ReduceMean": {1, lowerReduce(kernels.ReduceMean)}, "ReduceSum": {1, lowerReduce(kernels.ReduceSum)},
		"ReduceMax": {1, lowerReduce(kernels.ReduceMax)}, "ReduceMin": {1, lowerReduce(kernels.ReduceMin)},
		"ReduceL2": {1, lowerReduce(kernels.ReduceL2)}, "ArgMax": {1, argMax},
		"Softmax": {1, lowerSoftmax(0)}, "LogSoftmax": {1, lowerSoftmax(1)}, "LayerNormalization": {2, layerNorm},
		"Add": {2, lowerBinary(kernels.Add)}, "Sub": {2, lowerBinary(kernels.Sub)}, "Mul": {2, lowerBinary(kernels.Mul)},
		"Div": {2, lowerBinary(kernels.Div)}, "Pow": {2, lowerBinary(kernels.Pow)}, "Min": {1, lowerBinary(kernels.Min)},
		"Max": {1, lowerBinary(kernels.Max)}, "Sum": {1, lowerBinary(kernels.Add)}, "Where": {3, lowerWhere},
		"Identity": {1, lowerView}, "Dropout": {1, lowerView}, "Reshape": {1, lowerReshape}, "Flatten": {1, lowerFlatten},
		"Squeeze": {1, lowerSqueeze}, "Unsqueeze": {1, lowerUnsqueeze}, "Transpose": {1, lowerTranspose}, "Expand": {2, lowerExpand},
		"Concat": {1, lowerConcat}, "Split": {1, lowerSplit}, "Slice": {1, lowerSlice}, "Pad": {1, lowerPad}, "Gather": {2, lowerGather},
		"Cast": {1, lowerCast}, "Shape": {1, lowerShape}, "Constant": {0, lowerConstant}, "ConstantOfShape": {1, constantOfShape},
		"Range": {3, lowerRange}, opAttention: {2, lowerAttention}, opLinears: {3, lowerLinears},
	}

	for op := range activations {
		operators[op] = &operator{1, lowerUnary}
	}
}
