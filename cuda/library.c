//go:build cuda && linux && cgo

#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The functions by name, with handles and descriptors as pointers and enumerations as ints, so that no header
// of either library is needed: their ABI is the same from cuBLAS 11.4 and cuDNN 8 on.
#define BLAS(F) \
	F(cublasLtGetVersion, size_t, (void)) \
	F(cublasLtCreate, int, (void **)) \
	F(cublasLtDestroy, int, (void *)) \
	F(cublasLtMatmulDescCreate, int, (void **, int, int)) \
	F(cublasLtMatmulDescSetAttribute, int, (void *, int, const void *, size_t)) \
	F(cublasLtMatmulDescDestroy, int, (void *)) \
	F(cublasLtMatrixLayoutCreate, int, (void **, int, uint64_t, uint64_t, int64_t)) \
	F(cublasLtMatrixLayoutSetAttribute, int, (void *, int, const void *, size_t)) \
	F(cublasLtMatrixLayoutDestroy, int, (void *)) \
	F(cublasLtMatmulPreferenceCreate, int, (void **)) \
	F(cublasLtMatmulPreferenceSetAttribute, int, (void *, int, const void *, size_t)) \
	F(cublasLtMatmulPreferenceDestroy, int, (void *)) \
	F(cublasLtMatmulAlgoGetHeuristic, int, (void *, void *, void *, void *, void *, void *, void *, int, heuristic *, int *)) \
	F(cublasLtMatmul, int, (void *, void *, const void *, const void *, void *, const void *, void *, const void *, \
		const void *, void *, void *, void *, const algorithm *, void *, size_t, void *))

#define DNN(F) \
	F(cudnnGetVersion, size_t, (void)) \
	F(cudnnCreate, int, (void **)) \
	F(cudnnDestroy, int, (void *)) \
	F(cudnnSetStream, int, (void *, void *)) \
	F(cudnnCreateTensorDescriptor, int, (void **)) \
	F(cudnnSetTensor4dDescriptor, int, (void *, int, int, int, int, int, int)) \
	F(cudnnDestroyTensorDescriptor, int, (void *)) \
	F(cudnnCreateFilterDescriptor, int, (void **)) \
	F(cudnnSetFilter4dDescriptor, int, (void *, int, int, int, int, int, int)) \
	F(cudnnDestroyFilterDescriptor, int, (void *)) \
	F(cudnnCreateConvolutionDescriptor, int, (void **)) \
	F(cudnnSetConvolution2dDescriptor, int, (void *, int, int, int, int, int, int, int, int)) \
	F(cudnnSetConvolutionGroupCount, int, (void *, int)) \
	F(cudnnSetConvolutionMathType, int, (void *, int)) \
	F(cudnnDestroyConvolutionDescriptor, int, (void *)) \
	F(cudnnCreateActivationDescriptor, int, (void **)) \
	F(cudnnSetActivationDescriptor, int, (void *, int, int, double)) \
	F(cudnnDestroyActivationDescriptor, int, (void *)) \
	F(cudnnGetConvolutionForwardAlgorithm_v7, int, (void *, void *, void *, void *, void *, int, int *, performance *)) \
	F(cudnnGetConvolutionForwardWorkspaceSize, int, (void *, void *, void *, void *, void *, int, size_t *)) \
	F(cudnnConvolutionForward, int, (void *, const void *, void *, const void *, void *, const void *, void *, int, void *, size_t, \
		const void *, void *, void *)) \
	F(cudnnConvolutionBiasActivationForward, int, (void *, const void *, void *, const void *, void *, const void *, void *, int, \
		void *, size_t, const void *, void *, const void *, void *, const void *, void *, void *, void *))

typedef struct { uint64_t data[8]; } algorithm; // cublasLtMatmulAlgo_t

typedef struct { // cublasLtMatmulHeuristicResult_t
	algorithm algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} heuristic;

typedef struct { // cudnnConvolutionFwdAlgoPerf_t
	int algo, status;
	float time;
	size_t memory;
	int determinism, math, reserved[3];
} performance;

enum {
	CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14, COMPUTE_32F = 68,
	DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8,
	EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32,
	LAYOUT_BATCH = 5, LAYOUT_STRIDE = 6, PREFERENCE_WORKSPACE = 1,
	DNN_FLOAT = 0, DNN_HALF = 2, DNN_BFLOAT = 9, DNN_NCHW = 0, DNN_NHWC = 1, DNN_CROSS_CORRELATION = 1,
	DNN_RELU = 1, DNN_IDENTITY = 5, DNN_PROPAGATE_NAN = 1, DNN_FMA_MATH = 3, DNN_PRECOMPUTED_GEMM = 1,
	NO_LIBRARY = 801, // CUDA_ERROR_NOT_SUPPORTED
};

#define FIELD(name, result, args) result (*name) args;
struct gpu_library {
	gpu_device *device;
	void *blas, *dnn; // handles; 0 without the library
	BLAS(FIELD)
	DNN(FIELD)
};

// call is one shape with one algorithm. Products use desc and layouts; convolutions use the others.
typedef struct {
	gpu_library *lib;
	int convolution, bias, residual;
	size_t workspace;
	float alpha;
	void *desc, *a, *b, *d;
	algorithm algo;
	void *x, *w, *y, *vector, *window, *activation;
	int fwd;
} call;

static const int blas_types[] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF}, dnn_types[] = {DNN_FLOAT, DNN_HALF, DNN_BFLOAT};

// open_library tries the names of a library in each folder, then on the dynamic linker's path.
static void *open_library(const char *folders, const char *const *names) {
	char path[4096];
	while (folders && *folders) {
		const size_t n = strcspn(folders, ":");
		for (const char *const *name = names; *name; name++) {
			snprintf(path, sizeof path, "%.*s/%s", (int)n, folders, *name);
			// RTLD_GLOBAL lets cuDNN find cuBLASLt by its name.
			void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
			if (lib) return lib;
		}
		folders += n + (folders[n] == ':');
	}

	for (; *names; names++) {
		void *lib = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
		if (lib) return lib;
	}
	return 0;
}

int library_open(gpu_device *d, const char *folders, gpu_library **out, char *names, int32_t size) {
	static const char *const blas_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", 0};
	static const char *const dnn_names[] = {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so", 0};
	int rc = gpu_enter(d), n = 0;
	if (rc) return rc;

	gpu_library *l = calloc(1, sizeof *l);
	if (!l) return 2;
	l->device = d;
	names[0] = 0;

// A library that lacks one of the functions counts as absent.
#define LOOKUP(name, result, args) ok = ok && (l->name = (result (*) args)dlsym(lib, #name));
	void *lib = open_library(folders, blas_names);
	int ok = lib != 0;
	if (lib) { BLAS(LOOKUP) }
	if (ok && !l->cublasLtCreate(&l->blas)) n = snprintf(names, size, "cublasLt %zu", l->cublasLtGetVersion());

	lib = open_library(folders, dnn_names);
	ok = lib != 0;
	if (lib) { DNN(LOOKUP) }
	if (ok && !l->cudnnCreate(&l->dnn)) snprintf(names + n, size - n, "%scudnn %zu", n ? "," : "", l->cudnnGetVersion());

	*out = l;
	return 0;
}

void library_close(gpu_library *l) {
	gpu_enter(l->device);
	if (l->blas) l->cublasLtDestroy(l->blas);
	if (l->dnn) l->cudnnDestroy(l->dnn);
	free(l); // the libraries stay open: CUDA does not support unloading them
}

static void destroy_call(call *c) {
	gpu_library *l = c->lib;
	if (c->desc) l->cublasLtMatmulDescDestroy(c->desc);
	if (c->a) l->cublasLtMatrixLayoutDestroy(c->a);
	if (c->b) l->cublasLtMatrixLayoutDestroy(c->b);
	if (c->d) l->cublasLtMatrixLayoutDestroy(c->d);
	if (c->x) l->cudnnDestroyTensorDescriptor(c->x);
	if (c->y) l->cudnnDestroyTensorDescriptor(c->y);
	if (c->vector) l->cudnnDestroyTensorDescriptor(c->vector);
	if (c->w) l->cudnnDestroyFilterDescriptor(c->w);
	if (c->window) l->cudnnDestroyConvolutionDescriptor(c->window);
	if (c->activation) l->cudnnDestroyActivationDescriptor(c->activation);
	free(c);
}

void library_free(uint64_t p) { destroy_call((call *)p); }

#define TRY(e) do { int rc_ = (e); if (rc_) return rc_; } while (0)

// create_layout creates the description of batch matrices of rows by cols elements, stored by columns.
static int create_layout(gpu_library *l, void **out, int type, uint64_t rows, uint64_t cols, int64_t pitch, int32_t batch, int64_t stride) {
	TRY(l->cublasLtMatrixLayoutCreate(out, type, rows, cols, pitch));
	if (batch == 1) return 0;
	TRY(l->cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH, &batch, sizeof batch));
	return l->cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_STRIDE, &stride, sizeof stride);
}

// describe_product describes Dᵀ = Bᵀ·Aᵀ, because the library stores matrices by columns and Downbeat by rows.
static int describe_product(call *c, const gpu_product *p) {
	gpu_library *l = c->lib;
	const int type = blas_types[p->type], first = p->trans_b, second = p->trans_a;

	int epilogue = EPILOGUE_DEFAULT;
	if (p->bias) epilogue = EPILOGUE_BIAS;
	if (p->act == LIBRARY_RELU) epilogue = (epilogue & EPILOGUE_BIAS) | EPILOGUE_RELU;
	if (p->act == LIBRARY_GELU) epilogue = (epilogue & EPILOGUE_BIAS) | EPILOGUE_GELU;

	c->bias = p->bias, c->residual = p->residual, c->alpha = p->alpha;
	TRY(l->cublasLtMatmulDescCreate(&c->desc, COMPUTE_32F, CUDA_R_32F));
	TRY(l->cublasLtMatmulDescSetAttribute(c->desc, DESC_TRANSA, &first, sizeof first));
	TRY(l->cublasLtMatmulDescSetAttribute(c->desc, DESC_TRANSB, &second, sizeof second));
	TRY(l->cublasLtMatmulDescSetAttribute(c->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue));

	// Only the alignment of the bias matters here; library_run sets its address.
	if (p->bias) {
		const void *somewhere = (void *)4096;
		TRY(l->cublasLtMatmulDescSetAttribute(c->desc, DESC_BIAS_POINTER, &somewhere, sizeof somewhere));
	}

	TRY(create_layout(l, &c->a, type, first ? p->k : p->n, first ? p->n : p->k, p->ldb, p->batch, p->stride_b));
	TRY(create_layout(l, &c->b, type, second ? p->m : p->k, second ? p->k : p->m, p->lda, p->batch, p->stride_a));
	return create_layout(l, &c->d, type, p->n, p->m, p->n, p->batch, (int64_t)p->m * p->n);
}

// find_algorithms fills found with up to max algorithms that need at most workspace_max bytes.
static int find_algorithms(call *c, int64_t workspace_max, int max, heuristic *found, int *n) {
	gpu_library *l = c->lib;

	void *wish = 0;
	const uint64_t most = (uint64_t)workspace_max;
	TRY(l->cublasLtMatmulPreferenceCreate(&wish));
	int rc = l->cublasLtMatmulPreferenceSetAttribute(wish, PREFERENCE_WORKSPACE, &most, sizeof most);
	if (!rc) rc = l->cublasLtMatmulAlgoGetHeuristic(l->blas, c->desc, c->a, c->b, c->d, c->d, wish, max, found, n);
	l->cublasLtMatmulPreferenceDestroy(wish);
	return rc;
}

enum { FOUND_MAX = 16 };

static call *new_call(gpu_library *l, int convolution) {
	call *c = calloc(1, sizeof *c);
	if (c) c->lib = l, c->convolution = convolution;
	return c;
}

int library_product(gpu_library *l, const gpu_product *p, int64_t workspace_max, gpu_candidate *out, int32_t max, int32_t *count) {
	heuristic found[FOUND_MAX];
	int n = 0;
	*count = 0;
	if (!l->blas) return 0;
	TRY(gpu_enter(l->device));

	// The probe serves only to ask: it is freed before the candidates are made.
	call *probe = new_call(l, 0);
	if (!probe) return 2;
	int rc = describe_product(probe, p);
	if (!rc) rc = find_algorithms(probe, workspace_max, max < FOUND_MAX ? max : FOUND_MAX, found, &n);
	destroy_call(probe);

	// Each candidate has its own descriptors, so that it can be freed alone.
	for (int i = 0; !rc && i < n; i++) {
		if (found[i].state) continue;

		call *c = new_call(l, 0);
		if (!c) break;
		if (describe_product(c, p)) {
			destroy_call(c);
			continue;
		}

		c->algo = found[i].algo, c->workspace = found[i].workspace;
		out[(*count)++] = (gpu_candidate){(uint64_t)c, (int64_t)c->workspace, i, 0};
	}
	return 0; // an executor without candidates uses its own kernels
}

static int create_tensor(gpu_library *l, void **out, int format, int type, int n, int c, int h, int w) {
	TRY(l->cudnnCreateTensorDescriptor(out));
	return l->cudnnSetTensor4dDescriptor(*out, format, type, n, c, h, w);
}

static int describe_convolution(call *c, const gpu_convolution *p, int math) {
	gpu_library *l = c->lib;
	const int format = p->nhwc ? DNN_NHWC : DNN_NCHW, type = dnn_types[p->type];
	c->bias = p->bias, c->residual = p->residual;

	TRY(create_tensor(l, &c->x, format, type, p->n, p->c, p->h, p->w));
	TRY(create_tensor(l, &c->y, format, type, p->n, p->k, p->oh, p->ow));
	TRY(create_tensor(l, &c->vector, format, type, 1, p->k, 1, 1));

	TRY(l->cudnnCreateFilterDescriptor(&c->w));
	TRY(l->cudnnSetFilter4dDescriptor(c->w, type, format, p->k, p->c / p->groups, p->r, p->s));
	TRY(l->cudnnCreateConvolutionDescriptor(&c->window));

	TRY(l->cudnnSetConvolution2dDescriptor(c->window, p->pad_h, p->pad_w, p->stride_h, p->stride_w, p->dil_h, p->dil_w,
		DNN_CROSS_CORRELATION, DNN_FLOAT));
	TRY(l->cudnnSetConvolutionGroupCount(c->window, p->groups));
	TRY(l->cudnnSetConvolutionMathType(c->window, math));

	TRY(l->cudnnCreateActivationDescriptor(&c->activation));
	return l->cudnnSetActivationDescriptor(c->activation, p->act == LIBRARY_RELU ? DNN_RELU : DNN_IDENTITY, DNN_PROPAGATE_NAN, 0);
}

int library_convolution(gpu_library *l, const gpu_convolution *p, int64_t workspace_max, gpu_candidate *out, int32_t max, int32_t *count) {
	performance found[FOUND_MAX];
	int n = 0;
	*count = 0;
	if (!l->dnn) return 0;
	TRY(gpu_enter(l->device));

	// Strict float arithmetic: tensor cores would round fp32 to TF32.
	const int strict = p->type == LIBRARY_FLOAT;

	call *probe = new_call(l, 1);
	if (!probe) return 2;
	int rc = describe_convolution(probe, p, strict ? DNN_FMA_MATH : 1);
	if (!rc) rc = l->cudnnGetConvolutionForwardAlgorithm_v7(l->dnn, probe->x, probe->w, probe->window, probe->y, FOUND_MAX, &n, found);
	destroy_call(probe);

	for (int i = 0; !rc && i < n && *count < max; i++) {
		// The library has only one algorithm for a bias without an activation.
		if (found[i].status || (p->bias && p->act == LIBRARY_NONE && found[i].algo != DNN_PRECOMPUTED_GEMM)) continue;
		if (strict && found[i].math != 0 && found[i].math != DNN_FMA_MATH) continue;

		call *c = new_call(l, 1);
		if (!c) break;

		c->fwd = found[i].algo;
		if (describe_convolution(c, p, strict ? DNN_FMA_MATH : found[i].math) ||
			l->cudnnGetConvolutionForwardWorkspaceSize(l->dnn, c->x, c->w, c->window, c->y, c->fwd, &c->workspace) ||
			(int64_t)c->workspace > workspace_max) {
			destroy_call(c);
			continue;
		}

		out[(*count)++] = (gpu_candidate){(uint64_t)c, (int64_t)c->workspace, found[i].algo, 0};
	}
	return 0;
}

static int convolve(const call *c, const gpu_operands *o, void *stream) {
	gpu_library *l = c->lib;
	const float one = 1, zero = 0, other = c->residual ? 1 : 0;

	TRY(l->cudnnSetStream(l->dnn, stream));
	if (!c->bias) return l->cudnnConvolutionForward(l->dnn, &one, c->x, (void *)o->a, c->w, (void *)o->b, c->window, c->fwd,
		(void *)o->workspace, c->workspace, &zero, c->y, (void *)o->d);

	return l->cudnnConvolutionBiasActivationForward(l->dnn, &one, c->x, (void *)o->a, c->w, (void *)o->b, c->window, c->fwd,
		(void *)o->workspace, c->workspace, &other, c->y, (void *)(c->residual ? o->residual : o->d), c->vector, (void *)o->bias,
		c->activation, c->y, (void *)o->d);
}

// A library's status is not a CUresult: a refused call is an invalid value, and a call that fails is a failed launch.
enum { INVALID_VALUE = 1, LAUNCH_FAILED = 719, BLAS_EXECUTION_FAILED = 13, DNN_EXECUTION_FAILED = 8 };

int library_run(const void *operands, void *stream) {
	gpu_operands o;
	memcpy(&o, operands, sizeof o);
	const call *c = (const call *)o.call;
	gpu_library *l = c->lib;

	if (c->convolution) {
		const int rc = convolve(c, &o, stream);
		return rc == 0 ? 0 : rc == DNN_EXECUTION_FAILED ? LAUNCH_FAILED : INVALID_VALUE;
	}

	if (c->bias) TRY(l->cublasLtMatmulDescSetAttribute(c->desc, DESC_BIAS_POINTER, &o.bias, sizeof o.bias));
	const float beta = c->residual ? 1 : 0;
	const int rc = l->cublasLtMatmul(l->blas, c->desc, &c->alpha, (void *)o.b, c->a, (void *)o.a, c->b, &beta,
		(void *)(c->residual ? o.residual : o.d), c->d, (void *)o.d, c->d, &c->algo, (void *)o.workspace, c->workspace, stream);
	return rc == 0 ? 0 : rc == BLAS_EXECUTION_FAILED ? LAUNCH_FAILED : INVALID_VALUE;
}
